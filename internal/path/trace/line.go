package trace

// A Line is one line that a node writes, in JSON. Exactly one field is set. A node writes Armed first and Done last, so
// output without Done was cut off.
type Line struct {
	Armed       *Armed       `json:"armed,omitempty"`
	Observation *Observation `json:"observation,omitempty"`
	Heard       *Heard       `json:"heard,omitempty"`
	Done        *Done        `json:"done,omitempty"`
}

// Armed says that the node watches now. The sender sends only after all nodes have written it.
type Armed struct {
	Node string `json:"node"`
	// Sources are the mechanisms that work on this node. Missing says why the others do not.
	Sources []Source          `json:"sources"`
	Missing map[Source]string `json:"missing,omitempty"`
}

// Done ends the output.
type Done struct {
	Node string `json:"node"`
	// Lost says that events were lost: the node was too busy, or a bound was reached.
	Lost bool `json:"lost,omitempty"`
	// Changed says that nf_tables' rules changed while the node watched: repeat the probe.
	Changed bool   `json:"changed,omitempty"`
	Error   string `json:"error,omitempty"`
}
