"""The paper, table by table and figure by figure: ``python -m experiments NAME [--scale small]``."""
