package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestReap leaves children behind as a pod's processes do, and looks for zombies.
func TestReap(t *testing.T) {
	var pids []int
	for range 3 {
		child := exec.Command("true")
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, child.Process.Pid)
	}
	for _, pid := range pids {
		for end := time.Now().Add(5 * time.Second); !zombie(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("process %d has not ended", pid)
			}
		}
	}
	reap()
	for _, pid := range pids {
		if zombie(pid) {
			t.Errorf("process %d is still a zombie", pid)
		}
	}
	reap() // returns without children
}

// zombie reads the state of a process, which follows its name in parentheses.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(stat, []byte(") Z "))
}
