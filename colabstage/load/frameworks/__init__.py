"""Give the same batches to Keras and TensorFlow, without torch."""
