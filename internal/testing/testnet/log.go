package testnet

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A Log collects the output of goroutines and programs while a test reads it. The zero value is ready.
type Log struct {
	mu    sync.Mutex
	text  bytes.Buffer
	wrote chan struct{} // closed by the next Write; nil if no goroutine waits
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wrote != nil {
		close(l.wrote)
		l.wrote = nil
	}
	return l.text.Write(p)
}

// Await waits until text has been written. It returns an error if that takes too long.
func (l *Log) Await(text string, patience time.Duration) error {
	for end := time.After(patience); ; {
		l.mu.Lock()
		if bytes.Contains(l.text.Bytes(), []byte(text)) {
			l.mu.Unlock()
			return nil
		}
		if l.wrote == nil {
			l.wrote = make(chan struct{})
		}
		wrote := l.wrote
		l.mu.Unlock()
		select {
		case <-wrote:
		case <-end:
			return fmt.Errorf("not in the log after %v: %q", patience, text)
		}
	}
}

// String returns the output so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how often text has been written.
func (l *Log) Count(text string) int { return strings.Count(l.String(), text) }

// Has returns an error unless text has been written.
func (l *Log) Has(text string) error {
	if l.Count(text) == 0 {
		return fmt.Errorf("not in the log: %q", text)
	}
	return nil
}
