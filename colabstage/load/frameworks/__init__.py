"""Give the same batches to Keras, TensorFlow, and loops over numpy arrays, without torch."""
