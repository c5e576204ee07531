package chart

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// A version is a value under a condition. An empty condition always holds.
type version struct {
	when  string
	value any
}

// A node is the merged form of several versions of a value. It is a map (fields), a list (items), or a scalar with its
// cases. The last case is the default.
type node struct {
	key    string
	when   []string // one of these conditions must hold; empty: always
	fields []*node
	items  []*node
	cases  []version
	list   bool
}

// An expr is a template action in place of a scalar.
type expr string

// A block stands for a map or a list: a value, or a template that is included. An optional block is written only if it is
// not empty.
type block struct {
	name     string
	include  string
	optional bool
}

// merge merges versions into one node. The version that always holds comes first, if there is one.
func merge(versions []version) (*node, error) {
	switch {
	case all[map[string]any](versions):
		return mergeMaps(versions)
	case all[[]any](versions):
		return mergeLists(versions)
	}
	return mergeScalars(versions), nil
}

func all[T any](versions []version) bool {
	return !slices.ContainsFunc(versions, func(v version) bool { _, ok := v.value.(T); return !ok })
}

func mergeMaps(versions []version) (*node, error) {
	keys := map[string]bool{}
	for _, v := range versions {
		for key := range v.value.(map[string]any) {
			keys[key] = true
		}
	}
	n := &node{}
	for _, key := range slices.SortedFunc(maps.Keys(keys), byImportance) {
		var having []version
		for _, v := range versions {
			if value, ok := v.value.(map[string]any)[key]; ok {
				having = append(having, version{v.when, value})
			}
		}
		field, err := member(having, versions)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		field.key = key
		n.fields = append(n.fields, field)
	}
	return n, nil
}

// byImportance sorts the fields that identify an object to the front.
func byImportance(a, b string) int {
	rank := map[string]int{"apiVersion": -4, "kind": -3, "name": -2, "metadata": -1, "spec": 1, "status": 2}
	return cmp.Or(cmp.Compare(rank[a], rank[b]), strings.Compare(a, b))
}

// member merges the versions that have a member, under their conditions.
func member(having, versions []version) (*node, error) {
	n, err := merge(having)
	if err != nil || len(having) == len(versions) {
		return n, err
	}
	for _, v := range having {
		if v.when == "" {
			return nil, fmt.Errorf("a component removes it, which no condition of the chart says")
		}
		n.when = append(n.when, v.when)
	}
	return n, nil
}

// mergeLists treats lists as ordered sets. Elements that the first version lacks follow its own.
func mergeLists(versions []version) (*node, error) {
	n := &node{list: true}
	if !slices.ContainsFunc(versions, func(v version) bool { return !reflect.DeepEqual(v.value, versions[0].value) }) {
		versions = versions[:1]
		for _, item := range versions[0].value.([]any) {
			child, err := merge([]version{{versions[0].when, item}})
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, child)
		}
		return n, nil
	}
	var keys []string
	items := map[string][]version{}
	for _, v := range versions {
		for _, item := range v.value.([]any) {
			key := keyOf(item)
			if have := items[key]; len(have) == 0 {
				keys = append(keys, key)
			} else if have[len(have)-1].when == v.when {
				return nil, fmt.Errorf("the list has %s twice", key)
			}
			items[key] = append(items[key], version{v.when, item})
		}
	}
	for _, key := range keys {
		item, err := member(items[key], versions)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		n.items = append(n.items, item)
	}
	return n, nil
}

// keyOf returns the identity of a list's element across versions.
func keyOf(item any) string {
	if m, ok := item.(map[string]any); ok && m["name"] != nil {
		return fmt.Sprint(m["name"], " ", m["mountPath"], " ", m["namespace"])
	}
	text, _ := json.Marshal(item) // of JSON data, so it cannot fail
	return string(text)
}

func mergeScalars(versions []version) *node {
	n := &node{}
	for _, v := range slices.Backward(versions[1:]) { // if two components change it, the last one counts
		if reflect.DeepEqual(v.value, versions[0].value) {
			continue
		}
		if i := slices.IndexFunc(n.cases, func(c version) bool { return reflect.DeepEqual(c.value, v.value) }); i >= 0 {
			n.cases[i].when = either([]string{v.when, n.cases[i].when})
			continue
		}
		n.cases = append(n.cases, v)
	}
	n.cases = append(n.cases, versions[0])
	return n
}

// either returns the condition that one of the conditions holds.
func either(conditions []string) string {
	var out []string
	for _, c := range conditions {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	if len(out) == 1 {
		return out[0]
	}
	return "or " + inBrackets(out)
}

func inBrackets(conditions []string) string {
	out := make([]string, len(conditions))
	for i, c := range conditions {
		out[i] = c
		if strings.Contains(c, " ") {
			out[i] = "(" + c + ")"
		}
	}
	return strings.Join(out, " ")
}
