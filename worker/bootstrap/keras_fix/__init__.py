"""Makes Keras 3 train rightly over several workers, for this process only, once a script has imported it."""
