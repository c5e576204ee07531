package cni

import "testing"

// BenchmarkPod measures one ADD and one DEL as a runtime sees them, the start of
// a process each included; the test binary is smaller than the product's.
func BenchmarkPod(b *testing.B) {
	n := newNode(b)
	list := n.list("1.1.0", "fairway", "10.244.0.0/16", "fd00:10:244:1::/64")
	p := newPod(b)
	for b.Loop() {
		n.mustAdd(list, p)
		if err := n.del(list, p); err != nil {
			b.Fatal(err)
		}
	}
}
