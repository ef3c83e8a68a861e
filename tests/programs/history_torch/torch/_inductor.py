"""Stands in for torch's compiler, which torch imports when somebody asks for it."""
