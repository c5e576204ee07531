package testnet

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestAwait: a text that exists, a text that comes later in parts, and a text that never comes.
func TestAwait(t *testing.T) {
	var l Log
	fmt.Fprint(&l, "first")
	if err := l.Await("first", time.Minute); err != nil {
		t.Error(err)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		for _, part := range strings.Split("a line that comes in parts", "") {
			fmt.Fprint(&l, part)
		}
	}()
	if err := l.Await("firsta line that comes in parts", time.Minute); err != nil {
		t.Error(err)
	}
	<-written
	if err := l.Await("never", time.Millisecond); err == nil {
		t.Error("a text that was not written is found")
	}
}
