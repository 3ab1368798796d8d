"""Output for people: text, tables and plots made from records and results. Nothing here measures.

document      the blocks that every page consists of
pages         a record, ranks, a comparison, a gate, a history: each as a document
terminal      a document as text
markdown      a document as Markdown
html          a document as one self-contained page
charts        a chart as data
palette       the colours of all charts
figures       the charts of a record
curves        the charts of a sweep
tiles         the modules as tiles of an icicle
svg           a chart as SVG
plots         charts as PNG
events        the parts of a report that need the events themselves
timeline      the timeline of the busiest typical step
chains        who launched the large kernels, and what the host waited for
queue         launch delay and queue depth over the window
artifacts     report.html and plots/*.png of a run folder
key_averages  tables/key_averages.txt, as torch writes it
progress      progress of a capture
"""
