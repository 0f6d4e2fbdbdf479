"""WHERE it runs: recipe -> DAG, Ray Train, stage transition, evaluation, monitoring, reports, the command line."""
