package testnet

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
)

// A Log collects what goroutines and programs write, for a test that reads it meanwhile. The
// zero value works.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was written until now.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how often text was written.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Has returns an error unless text was written.
func (l *Log) Has(text string) error {
	if l.Count(text) == 0 {
		return fmt.Errorf("not in the log: %q", text)
	}
	return nil
}
