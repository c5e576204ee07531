// Package fair divides a worker among the tenants who share it, so that one tenant's changes do not delay another's, and
// lets a loop rest, so that changes do not use up a core.
//
//	changes ──→ Queue ── one item of each share in turn ──→ one worker
//	             └ a share is a namespace, or "" for cluster-wide objects
//	changes ──→ a pass over all objects ──→ Rest ──→ the next pass
package fair

// A Queue holds items that wait for one worker. It takes turns between shares, so an item waits for as many other items
// as there are shares, and for the earlier items of its own share. It is a workqueue.Queue of client-go. It is not safe
// for concurrent use.
type Queue[T any] struct {
	share   func(T) string
	waiting map[string][]T // by share, the oldest first; no list is empty
	turns   []string       // the keys of waiting, the next first
	length  int
}

// NewQueue returns an empty Queue. share is called once for each item, by Push.
func NewQueue[T any](share func(T) string) *Queue[T] {
	return &Queue[T]{share: share, waiting: map[string][]T{}}
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.length }

// Touch does nothing. workqueue.Queue needs it.
func (q *Queue[T]) Touch(T) {}

// Push adds an item behind the other items of its share.
func (q *Queue[T]) Push(item T) {
	share := q.share(item)
	if len(q.waiting[share]) == 0 {
		q.turns = append(q.turns, share)
	}
	q.waiting[share] = append(q.waiting[share], item)
	q.length++
}

// Pop removes the oldest item of the share whose turn it is. It returns the zero value if there is no item.
func (q *Queue[T]) Pop() (item T) {
	if q.length == 0 {
		return item
	}
	share := q.turns[0]
	q.turns = q.turns[1:]
	list := q.waiting[share]
	item, list[0] = list[0], item // the list does not keep the item in memory
	if q.length--; len(list) == 1 {
		delete(q.waiting, share)
		return item
	}
	q.waiting[share] = list[1:]
	q.turns = append(q.turns, share)
	return item
}

// Drop removes the newest item of the share with the most items, so that a full queue has room for the others. It
// returns the zero value if there is no item.
func (q *Queue[T]) Drop() (item T) {
	most, at := "", -1
	for i, share := range q.turns {
		if len(q.waiting[share]) > len(q.waiting[most]) {
			most, at = share, i
		}
	}
	if at < 0 {
		return item
	}
	list := q.waiting[most]
	last := len(list) - 1
	item, list[last] = list[last], item
	if q.length--; last == 0 {
		delete(q.waiting, most)
		q.turns = append(q.turns[:at:at], q.turns[at+1:]...)
		return item
	}
	q.waiting[most] = list[:last]
	return item
}
