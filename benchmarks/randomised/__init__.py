"""Training jobs drawn at random from published magnitudes, with their truth and the score of `slowrank`.

Every file draws one mechanism and states where its range comes from: a paper named as in the results, or
"assumption" where nothing is published. Only the public file format ties it to the product: nothing here is
imported from it.
"""
