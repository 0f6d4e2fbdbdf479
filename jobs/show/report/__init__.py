"""The report: one self-contained HTML page on a run, or on several side by side.

`model` says what a page shows, as plain frozen dataclasses that are filled from storage elsewhere; `page` renders
them. The page loads nothing and runs nothing: inline SVG, one style sheet, light and dark.
"""
