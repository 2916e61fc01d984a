"""How fast the package is, beside what one would use instead: `make bench`.

Every comparison is a *race*: contestants do the same work in turn (A B C A B C ...), in one
process, under one setting of threads; what they computed is compared in every round, and a race in
which somebody did less has no result. The numbers are in `results.json`, and the book's page
"How fast" reads them from there.
"""
