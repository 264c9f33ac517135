"""Who answers this request, and how do we speak to them?"""
