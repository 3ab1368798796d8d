"""The timeline of a trace's busiest typical step.

lanes       the stretch it shows, and the links between launches and their work
rows        its rows, and the marks in them
thinning    reduces the number of marks
data        the timeline as data for the script of report.html
bars        the timeline as bars for a PNG
picture     plots/lanes.png
"""
