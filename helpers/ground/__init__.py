"""What every room stands on: shapes, units, grammar of printed lines, bounded children."""
