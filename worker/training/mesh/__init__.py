"""Training on a mesh of devices by DTensor: the batch is cut along one axis, the weights along the other."""
