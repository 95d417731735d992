"""The model once more, as the formulas that it is: slow, and to be read beside them.

`evaluated` judges a small trace like the monitor does; property tests show that both say the same.
"""

from tests.reference.formal.formulas import evaluated

__all__ = ["evaluated"]
