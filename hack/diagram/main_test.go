package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// TestUpToDate: docs/fairway.svg is what the code's names make, and it is XML.
func TestUpToDate(t *testing.T) {
	want, err := draw("../..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../docs/fairway.svg")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/fairway.svg is old: go run ./hack/diagram")
	}
	d := xml.NewDecoder(strings.NewReader(want))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestOldName: a name that the code does not have is an error that says where to change it.
func TestOldName(t *testing.T) {
	was := boxes[7]
	defer func() { boxes[7] = was }()
	boxes[7].name = "frontends5"
	if _, err := draw("../.."); err == nil || !strings.Contains(err.Error(), "no map frontends5") {
		t.Errorf("got %v", err)
	}
}
