"""`benchmarks.studies paging`: what paging saves, on traces of lengths and without a model."""
