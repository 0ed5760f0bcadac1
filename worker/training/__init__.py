"""The built-in training program: data, model, strategy, checkpoints and the order in which they are used."""
