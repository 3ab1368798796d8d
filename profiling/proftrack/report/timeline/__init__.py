"""The timeline of a trace's busiest step.

lanes       which stretch it shows, and what belongs together
rows        its rows, and what is drawn in them
thinning    few enough marks
data        what the script of report.html draws
bars        what is narrower than a pixel, for a picture
picture     plots/lanes.png
"""
