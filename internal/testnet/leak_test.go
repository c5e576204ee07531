package testnet

import (
	"os"
	"strings"
	"testing"
	"time"
)

type runs func() int

func (r runs) Run() int { return r() }

// The leak check is checked: it finds a goroutine and a descriptor that are left.
// It is not parallel, for it looks at the whole process.
func TestMainFindsLeaks(t *testing.T) {
	before := descriptors()
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	if left := leftDescriptors(before); !strings.Contains(left, "/dev/null") {
		t.Errorf("an open file is not found: %q", left)
	}
	f.Close()
	if left := leftDescriptors(before); left != "" {
		t.Errorf("a closed file is found: %q", left)
	}
	stop := make(chan struct{})
	go func() { <-stop }()
	if left := leftGoroutines(); !strings.Contains(left, "TestMainFindsLeaks") {
		t.Errorf("a goroutine is not found: %q", left)
	}
	close(stop)
	var out strings.Builder
	if code := run(runs(func() int { return 3 }), &out); code != 3 {
		t.Errorf("a failed run ended with %d", code)
	}
	// The test's own runner is a goroutine that is left over, from here.
	if left := leaks(before, time.Millisecond); !strings.Contains(left, "testing") {
		t.Errorf("the runner is not found: %q", left)
	}
}
