"""The dashboard: a small read-only site about the runs of a storage.

`site` makes pages from storage (the same sections that a report is made of), `server` serves them, `hosts` says which
Host headers are answered, `live` is the page's only script. Nothing is written, nothing is remembered that storage
does not hold; what is immutable there is read once.
"""
