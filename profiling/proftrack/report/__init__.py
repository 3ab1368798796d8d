"""What a person sees: text, tables and pictures made of records and results. Nothing here measures.

document    the blocks that every page is made of
pages/      what is said of a record, of ranks, of a comparison, a gate, a history, as a document
terminal, markdown, html
            the three forms of a document
charts      a chart as data; palette has its colours
figures     the charts of a record; curves has those of a sweep
svg, plots  the two forms of a chart
breakdown   where time went, as parts of a whole
events      what a report shows of the events themselves: timeline/, chains, queue
artifacts   report.html and plots/*.png of a run folder
key_averages
            tables/key_averages.txt, as torch writes it
spreadsheet rows as CSV
progress    what a capture is doing, for whoever waits
"""
