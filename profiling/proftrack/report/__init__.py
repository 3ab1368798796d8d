"""What a person sees: text, tables and pictures made of a record. Nothing here measures."""
