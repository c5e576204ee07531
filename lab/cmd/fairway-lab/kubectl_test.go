package main

import (
	"strings"
	"testing"
)

// TestElsewhere: kubectl requires a running lab only if the user names no other cluster.
func TestElsewhere(t *testing.T) {
	for line, want := range map[string]bool{
		"get pods":                       false,
		"--kubeconfig /k get pods":       true,
		"get pods --kubeconfig=/k":       true,
		"-s https://192.0.2.1 get pods":  true,
		"--server=https://x get pods":    true,
		"exec p -- agent --kubeconfig=/": false,
	} {
		if got := elsewhere(strings.Fields(line)); got != want {
			t.Errorf("elsewhere(%q) = %v", line, got)
		}
	}
}
