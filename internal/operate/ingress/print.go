package ingress

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// Print writes the notes as comments, and the objects as YAML that `kubectl apply -f` reads.
func (r Result) Print(w io.Writer) error {
	lost := 0
	for _, n := range r.Notes {
		if n.Severity == Lost {
			lost++
		}
		if _, err := fmt.Fprintf(w, "# %-8s  %s  %s: %s\n", n.Severity, n.Ingress, n.Part, n.Text); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(w, "# %d objects, %d notes, %d of them about something without an equivalent\n", len(r.Objects), len(r.Notes), lost); err != nil {
		return err
	}
	for _, o := range r.Objects {
		body, err := object(o)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "---\n%s", body); err != nil {
			return err
		}
	}
	return nil
}

// object returns an object as YAML, without its status and what only an API server sets.
func object(o any) ([]byte, error) {
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("write %T: %w", o, err)
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("write %T: %w", o, err)
	}
	delete(fields, "status")
	if meta, ok := fields["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	body, err := yaml.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("write %T: %w", o, err)
	}
	return body, nil
}
