package nft

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// String returns the Write as text for tests and people: the verb, the set, and key and data in hexadecimal. They are
// split into words of four bytes, like the kernel's concatenations.
//
//	add frontends4 0a600009.06000000.00500000 : 01000000 "default/web:http"
func (w Write) String() string {
	verb := "add"
	switch {
	case w.Del && w.Add:
		verb = "replace"
	case w.Del:
		verb = "delete"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", verb, w.Set, hexWords(w.Key))
	for _, to := range [...][]byte{w.Last, w.End} {
		if to != nil {
			b.WriteString("-" + hexWords(to))
		}
	}
	if len(w.Data) > 0 || w.Goto != "" {
		b.WriteString(" : " + hexWords(w.Data) + w.Goto)
	}
	if w.Timeout > 0 {
		fmt.Fprintf(&b, " timeout %v", w.Timeout)
	}
	if w.Comment != "" {
		fmt.Fprintf(&b, " %q", w.Comment)
	}
	return b.String()
}

func hexWords(b []byte) string {
	var words []string
	for ; len(b) > 4; b = b[4:] {
		words = append(words, hex.EncodeToString(b[:4]))
	}
	return strings.Join(append(words, hex.EncodeToString(b)), ".")
}
