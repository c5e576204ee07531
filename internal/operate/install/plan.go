package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/fairway-net/fairway/internal/kube/objects"
)

// The actions of a step.
const (
	create = "create"
	change = "change"
	same   = "same"
	remove = "delete"
	end    = "ends" // something that works now
)

// A step is the change of one object.
type step struct {
	verb   string
	ref    objects.Ref
	fields []string // "path: old -> new", of a changed object
}

// A plan lists the changes of a run.
type plan []step

// planOf asks the server what applying the objects would change, and adds the deletions.
func planOf(ctx context.Context, api API, wanted []*unstructured.Unstructured, gone []objects.Ref) (plan, error) {
	var p plan
	for _, o := range wanted {
		s, err := stepOf(ctx, api, o)
		if err != nil {
			return nil, err
		}
		p = append(p, s)
	}
	for _, r := range gone {
		o, err := api.Get(ctx, r)
		if err != nil {
			return nil, err
		}
		if o != nil {
			p = append(p, step{verb: remove, ref: r})
		}
	}
	return p, nil
}

// noConversion is a merge patch that removes a conversion webhook.
const noConversion = `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`

func stepOf(ctx context.Context, api API, o *unstructured.Unstructured) (step, error) {
	s := step{verb: create, ref: objects.RefOf(o)}
	have, err := api.Get(ctx, s.ref)
	if err != nil || have == nil {
		return s, err
	}
	if _, converts, _ := unstructured.NestedMap(have.Object, "spec", "conversion", "webhook"); converts {
		return s, fmt.Errorf("%s has a conversion webhook of another program, which would stay [once that program is removed: kubectl patch crd %s --type merge -p '%s']", s.ref, s.ref.Name, noConversion)
	}
	then, err := api.Apply(ctx, o, true)
	if err != nil {
		if errors.Is(err, objects.ErrNoKind) {
			return s, nil
		}
		return s, err
	}
	s.verb, s.fields = same, withoutSchemas(differences("", visible(have), visible(then)))
	if len(s.fields) > 0 {
		s.verb = change
	}
	return s, nil
}

// schemaField matches a changed field below the schema of a version of a CustomResourceDefinition.
var schemaField = regexp.MustCompile(`^(spec\.versions\.\w+\.schema)\.`)

// withoutSchemas replaces the changed fields of each schema by their number. MetalLB's CustomResourceDefinitions differ
// from Fairway's in hundreds of descriptions.
func withoutSchemas(fields []string) (short []string) {
	count := map[string]int{}
	for _, f := range fields {
		if m := schemaField.FindStringSubmatch(f); m != nil {
			count[m[1]]++
		} else {
			short = append(short, f)
		}
	}
	for _, schema := range slices.Sorted(maps.Keys(count)) {
		short = append(short, fmt.Sprintf("%s: %d fields", schema, count[schema]))
	}
	return short
}

// visible returns an object without the server's own fields.
func visible(o *unstructured.Unstructured) map[string]any {
	c := o.DeepCopy()
	for _, f := range []string{"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"} {
		unstructured.RemoveNestedField(c.Object, "metadata", f)
	}
	unstructured.RemoveNestedField(c.Object, "metadata", "annotations", "deprecated.daemonset.template.generation")
	unstructured.RemoveNestedField(c.Object, "status")
	return c.Object
}

// differences returns each field that differs, as "path: old -> new".
func differences(path string, a, b any) (all []string) {
	if reflect.DeepEqual(a, b) {
		return nil
	}
	left, isLeft := a.(map[string]any)
	right, isRight := b.(map[string]any)
	if !isLeft || !isRight {
		l, okLeft := byName(a)
		r, okRight := byName(b)
		if !okLeft || !okRight {
			return []string{fmt.Sprintf("%s: %s -> %s", path, short(a), short(b))}
		}
		left, right = l, r
	}
	both := maps.Clone(left)
	maps.Copy(both, right)
	for _, key := range slices.Sorted(maps.Keys(both)) {
		at := key
		if path != "" {
			at = path + "." + key
		}
		all = append(all, differences(at, left[key], right[key])...)
	}
	return all
}

// byName turns a list whose elements have names into a map, as strategic merges do. It returns false if they have none.
func byName(v any) (map[string]any, bool) {
	elements, ok := v.([]any)
	if !ok {
		return nil, false
	}
	m := map[string]any{}
	for i, e := range elements {
		key := strconv.Itoa(i)
		if fields, ok := e.(map[string]any); ok {
			if name, ok := fields["name"].(string); ok {
				key = name
			}
		}
		m[key] = e
	}
	return m, true
}

// short shortens a value for printing.
func short(v any) string {
	if v == nil {
		return "(none)"
	}
	const longest = 60
	text := []rune(fmt.Sprint(v))
	if len(text) > longest {
		return string(text[:longest]) + "…"
	}
	return string(text)
}

// write prints the plan: a line for each object and for each changed field.
func (p plan) write(w io.Writer) {
	for _, s := range p {
		fmt.Fprintf(w, "  %-6s  %s\n", s.verb, s.ref)
		for _, f := range s.fields {
			fmt.Fprintf(w, "            %s\n", f)
		}
	}
}

// changes returns the number of objects that change.
func (p plan) changes() (n int) {
	for _, s := range p {
		if s.verb != same {
			n++
		}
	}
	return n
}
