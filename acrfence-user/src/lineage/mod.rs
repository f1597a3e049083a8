//! lineage (to come)
