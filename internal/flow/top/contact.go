package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
)

// A contact is what a View knows of one node's or pod's answers.
type contact struct {
	answered bool
	at       time.Time // of the last answer
	since    time.Time // when it was first asked, or failed
	err      string    // of the last attempt; empty: it works
	// measured says that the last sample has rates.
	measured bool
}

func (c *contact) answer(at time.Time, measured bool) {
	c.answered, c.at, c.err, c.measured = true, at, "", measured
}

func (c *contact) asked(at time.Time) {
	if c.since.IsZero() {
		c.since = at
	}
}

func (c *contact) fail(at time.Time, why string) {
	c.err = cmp.Or(printable(why), "it does not answer")
	c.asked(at)
}

// printable returns the beginning of a text that a node may have written, without what a terminal obeys.
func printable(text string) string {
	const most = 200
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	return cut(strings.Join(strings.Fields(text), " "), most)
}

// A pace is the time between two samples.
type pace time.Duration

// lateAfter is the age at which a sample is called late, and goneAfter the age at which its figures do not count.
func (p pace) lateAfter() time.Duration {
	return time.Duration(p) + max(time.Duration(p), 2*time.Second)
}
func (p pace) goneAfter() time.Duration { return max(10*time.Second, 5*time.Duration(p)) }

// counts reports whether the figures of a contact count.
func (p pace) counts(c *contact, now time.Time) bool {
	return c.answered && now.Sub(c.at) <= p.goneAfter()
}

// silence says that a contact does not answer, or answers late.
func (p pace) silence(c *contact, now time.Time) string {
	why := ""
	if c.err != "" {
		why = ": " + c.err
	}
	switch {
	case !c.answered && c.err != "":
		return "not counted" + why
	case !c.answered && now.Sub(c.since) > p.lateAfter():
		return fmt.Sprintf("not counted: no answer for %d s", seconds(now.Sub(c.since)))
	case !c.answered:
		return "not counted yet"
	}
	age := now.Sub(c.at)
	switch {
	case age > p.goneAfter():
		return fmt.Sprintf("not counted: no answer for %d s%s", seconds(age), why)
	case age > p.lateAfter():
		return fmt.Sprintf("late: its figures are %d s old%s", seconds(age), why)
	case c.err != "":
		return "its last figures are shown" + why
	}
	return ""
}

func seconds(d time.Duration) int { return int(d.Round(time.Second) / time.Second) }

// remarks are texts, each with the nodes that it is about.
type remarks map[string][]string

func (r remarks) add(text, node string) { r[text] = append(r[text], node) }

// lines returns a line for each text. It is never nil, which JSON shows as null.
func (r remarks) lines() []string {
	all := []string{}
	for _, text := range slices.Sorted(maps.Keys(r)) {
		all = append(all, some(r[text])+": "+text)
	}
	return all
}

// some names at most three nodes.
func some(nodes []string) string {
	const most = 3
	text := strings.Join(nodes[:min(most, len(nodes))], ", ")
	if more := len(nodes) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
