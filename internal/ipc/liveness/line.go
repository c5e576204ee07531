package liveness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// A line is one message: the whole list.
type line struct {
	Dead []string `json:"dead"`
}

const (
	// maxLine bounds a line: 255 names of 253 bytes.
	maxLine = 1 << 17
	// writeLimit limits the time of a write.
	writeLimit = 2 * time.Second
)

func (l line) write(c net.Conn) error {
	_ = c.SetWriteDeadline(time.Now().Add(writeLimit))
	return json.NewEncoder(c).Encode(l)
}

// readLines calls f with each line, until f returns false.
func readLines(r io.Reader, f func(line) bool) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("read from the speaker: %w", err)
		}
		slices.Sort(l.Dead)
		if !f(l) {
			return nil
		}
	}
	return lines.Err()
}
