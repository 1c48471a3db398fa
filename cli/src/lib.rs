//! The muster binary: client commands and the entry points server, agent, dev, driver.
