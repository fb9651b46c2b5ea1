"""Loop nests and vector code written statement by statement: how schedule rules and some operators make programs."""
