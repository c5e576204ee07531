package faults

import "testing"

// TestElements: elements of sets and maps are counted, not those of rules or of the dispatch map.
func TestElements(t *testing.T) {
	const table = `table inet x {
	map m {
		type ipv4_addr . inet_proto : ipv4_addr
		elements = { 1.1.1.1 . tcp comment "a" : 2.2.2.2,
			     1.1.1.2 . tcp : 2.2.2.2, 1.1.1.3 . tcp : 2.2.2.2 }
	}

	set s {
		type ipv4_addr
		elements = { 1.1.1.1 }
	}

	map dispatch {
		type ipv4_addr : ipv4_addr
		elements = { 1.1.1.1 : 2.2.2.2 }
	}

	chain c {
		ip saddr { 1.1.1.1, 2.2.2.2 } drop
	}
}
`
	if n := elements(table); n != 4 {
		t.Errorf("%d elements, want 4", n)
	}
}
