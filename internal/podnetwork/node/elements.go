package node

// elements are the values by key, by set. The sets have no intervals.
type elements = map[string]map[string]string
