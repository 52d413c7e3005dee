"""The same batches for Keras and TensorFlow, without torch."""
