package faults

import "testing"

// TestElements: elements of sets and maps are counted, not those of rules, of the dispatch map or of
// what is remembered for some seconds.
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

	set checked4 {
		type ipv4_addr . ifname
		flags dynamic,timeout
		elements = { 1.1.1.1 . "a" expires 2s688ms,
			     1.1.1.2 . "b" expires 4s }
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
