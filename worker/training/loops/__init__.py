"""The ways through the steps of a training: Keras fit, and a loop of our own."""
