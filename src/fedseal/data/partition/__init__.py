"""Who holds which images: partitions of a data set over clients.

A partitioner is named like everything else: `iid`, `dirichlet:alpha=0.5`, `classes:per_client=2`. Each assigns every
image exactly once, except where the method says otherwise; the same seed gives the same partition. flwr-datasets has
partitioners of the same names for Hugging Face data sets; these work on labels and images in memory and need nothing.
"""

from __future__ import annotations

from fedseal.data.partition.core import PARTITIONERS, Partition, Partitioner, partition

__all__ = ["PARTITIONERS", "Partition", "Partitioner", "partition"]
