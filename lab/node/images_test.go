package node

import "testing"

// TestOnLoopback: only a registry with a port on the node's own loopback address counts.
func TestOnLoopback(t *testing.T) {
	for image, want := range map[string]bool{
		"localhost:31492/pause:testing": true, "127.0.0.1:5000/a/b@sha256:00": true, "[::1]:5000/web": true,
		"localhost/web:dev": false, "web": false, "localhost": false, "192.0.2.1:5000/web": false, "registry.k8s.io/pause:3.10": false,
	} {
		if got := onLoopback(image); got != want {
			t.Errorf("%s: %t", image, got)
		}
	}
}
