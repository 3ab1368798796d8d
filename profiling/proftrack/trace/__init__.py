"""From a trace file to a table of its complete events."""
