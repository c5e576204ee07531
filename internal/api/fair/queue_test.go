package fair

import (
	"slices"
	"strings"
	"testing"
)

// letters returns a Queue in which the first letter of an item is its share.
func letters(items ...string) *Queue[string] {
	q := NewQueue(func(item string) string { return item[:1] })
	for _, item := range items {
		q.Push(item)
	}
	return q
}

func drain(q *Queue[string]) string {
	var all []string
	for q.Len() > 0 {
		all = append(all, q.Pop())
	}
	return strings.Join(all, " ")
}

// TestTurns: an item waits for one item of each other share, however many of them came before it.
func TestTurns(t *testing.T) {
	q := letters("a1", "a2", "a3", "a4", "b1", "b2", "c1")
	if got := q.Pop(); got != "a1" {
		t.Errorf("first %q, want a1", got)
	}
	q.Push("d1")
	if got, want := drain(q), "b1 c1 a2 d1 b2 a3 a4"; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	if len(q.waiting) != 0 || len(q.turns) != 0 {
		t.Errorf("an empty queue keeps the shares %v, %v", q.waiting, q.turns)
	}
	if got := q.Pop() + q.Drop(); got != "" {
		t.Errorf("an empty queue returned %q", got)
	}
}

// TestDrop: the share with the most items pays for a full queue.
func TestDrop(t *testing.T) {
	q := letters("b1", "a1", "a2", "a3", "c1", "c2")
	var dropped []string
	for range 4 {
		dropped = append(dropped, q.Drop())
	}
	if want := []string{"a3", "a2", "c2", "b1"}; !slices.Equal(dropped, want) {
		t.Errorf("dropped %q, want %q", dropped, want)
	}
	if got, want := drain(q), "a1 c1"; got != want {
		t.Errorf("remaining %q, want %q", got, want)
	}
}
