"""The workbook's answers for agents: a server of the Model Context Protocol."""
