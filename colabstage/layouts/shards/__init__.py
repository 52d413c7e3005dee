"""Samples that others packed: WebDataset, TFRecord, LMDB, Arrow and parquet."""
