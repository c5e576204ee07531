package api

import "testing"

func TestMatches(t *testing.T) {
	web := map[string]string{"app": "web", "tier": "front"}
	for _, test := range []struct {
		name     string
		selector Selector
		text     string
		want     bool
	}{
		{"the empty selector", Selector{}, "", true},
		{"a label", NewSelector(Requirement{"app", In, []string{"web"}}), "app=web", true},
		{"another value", NewSelector(Requirement{"app", In, []string{"api"}}), "app=api", false},
		{"one of several", NewSelector(Requirement{"app", In, []string{"web", "api"}}), "app in (api,web)", true},
		{"a label that is missing", NewSelector(Requirement{"zone", In, []string{""}}), "zone=", false},
		{"none of several", NewSelector(Requirement{"app", NotIn, []string{"web", "api"}}), "app notin (api,web)", false},
		{"NotIn, label missing", NewSelector(Requirement{"zone", NotIn, []string{"a"}}), "zone notin (a)", true},
		{"exists", NewSelector(Requirement{"tier", Exists, nil}), "tier", true},
		{"exists, missing", NewSelector(Requirement{"zone", Exists, nil}), "zone", false},
		{"does not exist", NewSelector(Requirement{"zone", DoesNotExist, nil}), "!zone", true},
		{"does not exist, exists", NewSelector(Requirement{"tier", DoesNotExist, nil}), "!tier", false},
		{"all must hold", NewSelector(Requirement{"tier", Exists, nil}, Requirement{"app", In, []string{"api"}}), "app=api,tier", false},
		{"unreadable", NewSelector(Requirement{Key: "app"}), "app is unreadable", false},
	} {
		if got := test.selector.Matches(web); got != test.want {
			t.Errorf("%s: %v matches: %v", test.name, test.selector, got)
		}
		if got := test.selector.String(); got != test.text {
			t.Errorf("%s: %q, want %q", test.name, got, test.text)
		}
	}
}

func TestEqual(t *testing.T) {
	a := NewSelector(Requirement{"b", In, []string{"2", "1"}}, Requirement{"a", Exists, nil}, Requirement{"a", Exists, nil})
	b := NewSelector(Requirement{"a", Exists, nil}, Requirement{"b", In, []string{"1", "2"}})
	if !a.Equal(b) || a.Equal(NewSelector(Requirement{"a", Exists, nil})) {
		t.Errorf("%v and %v", a, b)
	}
	if AnyMatches(nil, nil) || !AnyMatches([]Selector{a, {}}, nil) {
		t.Error("AnyMatches")
	}
}

func TestParseOperator(t *testing.T) {
	for text, want := range map[string]Operator{"In": In, "NotIn": NotIn, "Exists": Exists, "DoesNotExist": DoesNotExist} {
		if got, err := ParseOperator(text); got != want || err != nil {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	if got, err := ParseOperator("in"); got != Nothing || err == nil {
		t.Errorf("in: %v %v", got, err)
	}
}
